"""What left-to-right models are for: generate text, judge text (perplexity), attribute it to control codes."""
