"""`diff`: does this setup still read like that one?"""
