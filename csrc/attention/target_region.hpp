#pragma once

// Standard headers come before: their functions are shared with other files and must run everywhere.
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "attention/kernel.hpp"

// Between these two, the compiler may use the named instructions, whatever the rest of the file is compiled
// for.
#define LAMINA_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define LAMINA_BEGIN_TARGET(names) \
  LAMINA_PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define LAMINA_END_TARGET LAMINA_PRAGMA(clang attribute pop)
#else
#define LAMINA_BEGIN_TARGET(names) LAMINA_PRAGMA(GCC push_options) LAMINA_PRAGMA(GCC target(names))
#define LAMINA_END_TARGET LAMINA_PRAGMA(GCC pop_options)
#endif
