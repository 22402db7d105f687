#pragma once
#include <limits>

#include "kw_device_functions.h"
#include "kw_host_functions.h"
#include "kw_types.h"
