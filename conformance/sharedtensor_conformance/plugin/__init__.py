"""The pytest plugin: adds options, makes the cases, runs them and writes the report.

pytest loads the module `hooks`: in a checkout through ``conftest.py``, and in an
environment where the suite is installed through the entry point `entry`.
"""
