"""The adapters that ship with the suite, one module each.

Importing one of these modules never imports the framework it speaks for: pytest reads
the `Implementation` in every run, and only owner and peers call its `Operations`.
"""
