"""AOTAutograd's joint graph of a step, and what forward saves for backward."""
