"""What is asked of the past, and how the answer is made: pure values and functions.

Finding and reading are the session's business. Here is what may be asked, what a reference means, in which order
what was found is worth showing, and how as much of it as an allowance holds is put into an answer, to the letter.
"""
