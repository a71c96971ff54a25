"""The SGLang side: a radix cache that splices, and the routes that tell about it."""
