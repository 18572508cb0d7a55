"""A list of mistakes from fixes and reports of trainers, and what judges the answers to it.

Every entry was written from a fix or a report, with what an answer must say of it, before any was
run, by somebody who had read neither causes nor rules; whoever builds has read its clean
batches alone. Two other lists were read, and removed: the page of answers has the fourth's rates.
"""
