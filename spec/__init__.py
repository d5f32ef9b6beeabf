"""The chapters of the spec, installed as data of the suite."""
