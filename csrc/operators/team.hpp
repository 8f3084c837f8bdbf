#pragma once

#include <cstddef>

namespace lamina::operators {

// Work below this many numbers is done by the caller alone: to notify others and to wait for them takes
// longer.
inline constexpr std::size_t kAlone = 8 * 1024;

// Calls `some(first, last)` for parts of [0, rows), of `width` numbers each, that have all of them together:
// on the threads that torch's own operators run on, which are awake and are not to be in the way of others'.
// Where torch has another kind of threads, or has not been loaded, the caller does it alone.
template <typename F>
void share(std::size_t rows, std::size_t width, F some);

namespace detail {

struct Shared {
  void (*call)(const void* some, std::size_t first, std::size_t last);
  const void* some;
  std::size_t rows;
};

// How many threads may take part.
int team_size();
void run_on_team(Shared& shared, int threads);

}  // namespace detail

template <typename F>
void share(std::size_t rows, std::size_t width, F some) {
  const int threads = rows > 1 && rows * width >= kAlone ? detail::team_size() : 1;
  if (threads <= 1) return some(std::size_t{0}, rows);
  detail::Shared shared{[](const void* what, std::size_t first, std::size_t last) {
                          (*static_cast<const F*>(what))(first, last);
                        },
                        &some, rows};
  detail::run_on_team(shared, threads);
}

}  // namespace lamina::operators
