#include "operators/team.hpp"

#include <dlfcn.h>

namespace lamina::operators::detail {

namespace {

// libgomp's, which torch ships under its own name with global visibility: another copy of it
// would have threads of its own, on the same cores. What these functions are given has not changed for many
// versions, since compiled programs call them.
struct Gomp {
  void (*parallel)(void (*)(void*), void*, unsigned threads, unsigned flags) = nullptr;
  int (*number)() = nullptr;
  int (*size)() = nullptr;
  int (*most)() = nullptr;
  int (*within)() = nullptr;
};

template <typename F>
bool resolve(F& function, const char* name) {
  function = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

Gomp gomp() {
  Gomp all;
  const bool there = resolve(all.parallel, "GOMP_parallel") && resolve(all.number, "omp_get_thread_num") &&
                     resolve(all.size, "omp_get_num_threads") && resolve(all.most, "omp_get_max_threads") &&
                     resolve(all.within, "omp_in_parallel");
  return there ? all : Gomp{};
}

// Looked for at the first use: torch has been loaded by then, since the numbers are in its tensors.
const Gomp& team() {
  static const Gomp loaded_once = gomp();
  return loaded_once;
}

void part(void* of) {
  const Shared& shared = *static_cast<const Shared*>(of);
  const auto number = static_cast<std::size_t>(team().number());
  const auto size = static_cast<std::size_t>(team().size());
  const std::size_t first = shared.rows * number / size, last = shared.rows * (number + 1) / size;
  if (first < last) shared.call(shared.some, first, last);
}

}  // namespace

int team_size() {
  const Gomp& all = team();
  return all.parallel == nullptr || all.within() != 0 ? 1 : all.most();
}

void run_on_team(Shared& shared, int threads) {
  team().parallel(&part, &shared, static_cast<unsigned>(threads), 0);
}

}  // namespace lamina::operators::detail
