"""The mutants, with one module for each chapter of the specification."""
