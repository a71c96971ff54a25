"""The demo: a LangGraph agent on a real SGLang, with and without splicing."""
