"""What an answer says: right, hedged, wrong, refusal or empty. The one reading of model text of the
whole project.
"""
