// The quantisers of quant.h as functions of a shared object (tests and tools call them).
#include "mem.h"
#define LW_QUANT_LINKAGE LW_API
#include "quant.h"
