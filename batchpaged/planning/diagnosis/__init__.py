"""Why prefixes miss: what in the pipeline file or the data keeps rows from sharing what they have in common.

Each cause is tried, not guessed: the prompts are made again with one thing changed, tokenised and ordered, and the
unique tokens of both are compared. That takes time, so each step looks only at what the one before let through:

    a cause's module        is there any sign of it? (two values that are equal but for white space, ...)
    sharing of characters   would the changed texts share more?
    unique tokens           how many exactly, with the chat template and everything else as in the run?

findings    what is found, as data            sample      which rows are looked at
passages    a text in pieces; white space     fields      the texts inside a table, to read and to change
examination the rows in several versions, their texts and tokens
sharing     what texts have in common         diagnose    puts it together
whitespace, variants, context_order, varying, short_prefix: the causes
"""
