"""kvtier for inference engines, one module each: vllm, vllm_tier, sglang, lmcache, transformers. See README.md."""

__version__ = "0.1.0"
