#pragma once

#include <algorithm>
#include <cstdint>

namespace lamina {

// How far back a token sees.
struct Sight {
  int window = 0;  // that many tokens, itself included; 0: all
  int chunk = 0;   // those of its own chunk, of that many from the request's first on; 0: there are none

  bool operator==(const Sight&) const = default;
  bool limited() const { return window != 0 || chunk != 0; }
  // The first token that the last one of `tokens` sees.
  std::int64_t first(std::int64_t tokens) const {
    const std::int64_t in_window = window == 0 ? 0 : std::max<std::int64_t>(tokens - window, 0);
    const std::int64_t in_chunk = chunk == 0 || tokens == 0 ? 0 : (tokens - 1) / chunk * chunk;
    return std::max(in_window, in_chunk);
  }
  // How many of so many tokens the last one sees.
  std::int64_t observed(std::int64_t tokens) const { return tokens - first(tokens); }
};

}  // namespace lamina
