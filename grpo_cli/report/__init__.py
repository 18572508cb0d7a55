"""Results as people and programs read them: rows, json, jsonl, csv and tables."""
