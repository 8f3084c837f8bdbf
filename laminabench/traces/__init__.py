"""Traces: tables of requests, from files, downloads or fitted profiles, ready for a replay."""
