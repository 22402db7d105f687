#include "../kw_tensors.h"
