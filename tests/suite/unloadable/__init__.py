"""Adapter modules that never finish importing, or not well."""
