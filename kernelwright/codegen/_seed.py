def inductor_seed(graph, reply):
    return None
