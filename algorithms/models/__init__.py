"""Which model a name stands for, how large it is, and its tokenizer."""
