"""The mutants, one module each chapter of the specification."""
