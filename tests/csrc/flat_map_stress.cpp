// Drives FlatMap at random beside std::unordered_map. Meant for a sanitized build. Exits with 1 on a
// mismatch.

#include <random>
#include <unordered_map>

#include "core/flat_map.hpp"
#include "expect.hpp"

namespace {

using lamina::FlatMap;
using Model = std::unordered_map<FlatMap::Key, FlatMap::Handle>;

void compare(const FlatMap& map, const Model& model) {
  expect(map.size() == model.size(), "size() differs");
  std::size_t visited = 0;
  map.for_each([&](FlatMap::Key key, FlatMap::Handle handle) {
    ++visited;
    const auto match = model.find(key);
    expect(match != model.end() && match->second == handle, "for_each() visits something else");
    expect(map.find(key) == handle, "find() loses a key");
  });
  expect(visited == model.size(), "for_each() visits some twice or not at all");
}

// Few distinct keys, so that half the steps erase; shifted left they differ in their high bits only.
void walk(std::mt19937_64& random, std::uint64_t distinct, int shift) {
  FlatMap map;
  Model model;
  for (FlatMap::Handle step = 0; step < 40'000; ++step) {
    const auto key = static_cast<FlatMap::Key>((random() % distinct - distinct / 2) << shift);
    const auto match = model.find(key);
    expect(map.find(key) == (match == model.end() ? FlatMap::kNone : match->second), "find() differs");
    if (match == model.end()) {
      map.insert(key, step);
      model.emplace(key, step);
    } else {
      map.erase(key);
      model.erase(match);
    }
    if (step % 1000 == 0) compare(map, model);
  }
  compare(map, model);
}

}  // namespace

int main() {
  std::mt19937_64 random(20240501);
  for (const std::uint64_t distinct : {8, 100, 5000}) {
    for (const int shift : {0, 16, 32, 51}) walk(random, distinct, shift);
  }
  std::puts("flat_map_stress: ok");
}
