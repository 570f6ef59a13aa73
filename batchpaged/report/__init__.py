"""The report of a run.

    facts -> metrics.build_report -> json, html, prometheus, terminal

facts.py says what a run must hand over; metrics.py turns it into report.json's dict; the others only show that dict
(html.py also draws distributions and the course of the run, straight from the facts).
"""
