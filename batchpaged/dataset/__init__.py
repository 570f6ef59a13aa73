"""Input data sets, prompts and output files. Plain Python and Arrow; torch is never imported here.

reading     source    what a run reads; opens and judges everything at once
            discovery, locations    paths, globs, folders, URLs -> files in a fixed order
            formats    Parquet footers and rows, Arrow streams of saved Hugging Face datasets
            parts    how files are cut into pieces of a few thousand rows
            schema, promotion    one schema over all files
            ids    are the ids unique?
prompting   prompts    rows -> token ids, or the reason why not
            prompt_sources    templates, messages, text, token ids
            templates, messages, cells, encoder    Jinja2, chat templates, Arrow values, tokenisation
writing     sink, windows    committed units -> output in input order, published atomically
"""
