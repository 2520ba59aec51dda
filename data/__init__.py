"""Questions, passages, question-answer pairs, benchmarks and the lab's world, and the files that
they lie in.
"""
