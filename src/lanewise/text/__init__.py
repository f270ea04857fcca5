"""Text: tokenizers from a checkpoint's own vocabulary, streams of pieces, chat templates."""
