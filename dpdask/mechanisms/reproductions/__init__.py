"""Published mechanisms that better ones supersede, kept to be compared with and for those who must
reproduce a paper.
"""
