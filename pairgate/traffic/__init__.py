"""Request logs in many shapes, read one record at a time, into requests of a slice.

lines | arrays | tables | vllm      what a file holds      -> JSON text of one record each
shapes                              where things stand     -> id, domain, session, time, body
body                                what the body says     -> Request
importing                           counts, duplicates     -> Found
sampling, leaks                     which of them          -> the slice
"""
