"""What an answer says: right, wrong, hedged or a refusal. The one reading of model text of the
whole project.
"""
