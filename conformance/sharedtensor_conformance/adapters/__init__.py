"""The adapters that are shipped with the suite, one module for each.

The import of one of these modules never imports the framework. pytest reads the
`Implementation` in every run, and only owner and peers call its `Operations`.
"""
