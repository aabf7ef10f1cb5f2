"""Client-level differential privacy around any sound method: what is promised, and to whom, is in docs/privacy.md."""
