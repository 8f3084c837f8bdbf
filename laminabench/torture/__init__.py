"""What is done to break it, as programs: faults, floods and damage, each with a seed that repeats it"""
