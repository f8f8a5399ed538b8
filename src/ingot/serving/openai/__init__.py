"""Language models behind OpenAI's routes: completions, chats with tools and schemas, embeddings, as streams or not.

https://platform.openai.com/docs/api-reference
"""
