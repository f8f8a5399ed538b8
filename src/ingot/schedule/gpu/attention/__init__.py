"""Attention and its gradients without scores in memory."""
