"""Families of models: each reads its checkpoint's facts and authors one step over rows."""
