// What a C++ extension mostly needs of torch: tensors, operators, and their bindings to Python. torch's own header of
// this name takes in modules, optimisers and serialisation as well, and takes twice as long to compile. A source that
// does not compile with this one is compiled with torch's.
#pragma once

#include <torch/types.h>
#include <torch/utils.h>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
