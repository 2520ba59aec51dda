"""What RLKF is compared with: supervised fine-tuning, DPO and rejection sampling on the same
rankings.
"""
