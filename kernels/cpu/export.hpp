// What the library shows to the outside: plain C functions, loaded with ctypes. Everything else is hidden.
#pragma once

#define SLIPSTREAM_API extern "C" __attribute__((visibility("default")))
