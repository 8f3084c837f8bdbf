// Drives the slab allocator at random beside an obvious model of it, and breaks slabs on purpose to see that
// check_integrity() can say no. Meant for a sanitized build. Exits with 1 on a mismatch.

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/slab.hpp"
#include "expect.hpp"

namespace lamina {

struct SlabTestAccess {
  static auto& free_stack(Slab& slab) { return slab.free_stack_; }
  static auto& used(Slab& slab) { return slab.used_; }
  static auto& owners(Slab& slab) { return slab.owners_; }
  static auto& first_spare(Slab& slab) { return slab.first_spare_; }
  static auto& handles(Slab& slab) { return slab.handles_; }
  static auto& list(Slab& slab, RequestId request) { return slab.lists_[slab.handles_.find(request)]; }
};

}  // namespace lamina

namespace {

using lamina::FlatMap;
using lamina::RequestId;
using lamina::Sight;
using lamina::Slab;
using lamina::Slot;
using Access = lamina::SlabTestAccess;
using Slots = std::vector<Slot>;
using Random = std::mt19937_64;

Slots copy_of(std::span<const Slot> slots) { return {slots.begin(), slots.end()}; }

// The slab as one would first write it: a vector for a stack, a map of vectors, and owners found by looking.
class Model {
public:
  Model(Slot capacity, Sight sight) : sight_(sight) {
    for (Slot slot = capacity; slot-- > 0;) stack_.push_back(slot);
  }

  std::map<RequestId, Slots> lists;  // the slots of the last tokens
  std::map<RequestId, std::int64_t> lengths;

  std::int64_t free() const { return static_cast<std::int64_t>(stack_.size()); }

  // How many of n more tokens get slots, and whether the request has what these see.
  std::int64_t slots_of(RequestId request, std::int64_t n) {
    return std::min(n, sight_.observed(length(request) + n));
  }
  bool can_grow(RequestId request, std::int64_t n) {
    const auto stored = static_cast<std::int64_t>(lists.contains(request) ? lists[request].size() : 0);
    return stored + n >= sight_.observed(length(request) + n);
  }

  // What n more tokens make unseen goes back.
  void forget(RequestId request, std::int64_t n) {
    Slots& list = lists[request];
    const std::int64_t retained = sight_.observed(length(request) + n) - slots_of(request, n);
    Slots departed;
    while (static_cast<std::int64_t>(list.size()) > retained) {
      departed.push_back(list.front());
      list.erase(list.begin());
    }
    for (; !departed.empty(); departed.pop_back()) {
      if (owners(departed.back()) == 0) stack_.push_back(departed.back());
    }
  }

  // The next slots of a step are turned by one more for each even batch.
  void turn(std::size_t batch) {
    if (batch == 0 || batch % 2 != 0) return;
    const auto next = stack_.rbegin();
    const auto by = static_cast<std::ptrdiff_t>(steps_++ % batch);
    std::rotate(next, next + by, next + static_cast<std::ptrdiff_t>(batch));
  }

  Slots append(RequestId request, std::int64_t tokens) {
    forget(request, tokens);
    Slots slots;
    std::int64_t n = slots_of(request, tokens);
    lengths[request] += tokens;
    for (; n > 0; --n) {
      slots.push_back(stack_.back());
      stack_.pop_back();
    }
    Slots& list = lists[request];
    list.insert(list.end(), slots.begin(), slots.end());
    return slots;
  }

  void fork(RequestId parent, RequestId child, std::int64_t n) {
    const Slots source = lists.at(parent);
    const std::int64_t lost = lengths.at(parent) - static_cast<std::int64_t>(source.size());
    lists[child] = Slots(source.begin(), source.begin() + std::max<std::int64_t>(n - lost, 0));
    lengths[child] = n;
  }

  void release(RequestId request) {
    Slots list = lists.at(request);
    lists.erase(request);
    lengths.erase(request);
    for (; !list.empty(); list.pop_back()) {
      if (owners(list.back()) == 0) stack_.push_back(list.back());
    }
  }

  std::uint32_t owners(Slot slot) const {
    std::uint32_t count = 0;
    for (const auto& [_, list] : lists) count += std::count(list.begin(), list.end(), slot) > 0;
    return count;
  }

private:
  std::int64_t length(RequestId request) const { return lengths.contains(request) ? lengths.at(request) : 0; }

  Slots stack_;
  std::size_t steps_ = 0;
  Sight sight_;
};

// One slab beside its model.
class Walk {
public:
  Walk(Random& random, Slot capacity, Sight sight)
      : random_(random), sight_(sight), slab_(capacity, sight), model_(capacity, sight) {}

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      switch (below(5)) {
        case 0:
          allocate();
          break;
        case 1:
          extend();
          break;
        case 2:
          fork();
          break;
        case 3:
          release();
          break;
        default:
          look();
          break;
      }
      compare();
    }
  }

private:
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
  }

  // A few ids, of every sign and size, that collide in the map's low and high bits.
  RequestId any_request() {
    static constexpr RequestId kBases[] = {0, -1, INT64_MIN, INT64_MAX - 30, std::int64_t{1} << 60};
    return kBases[below(5)] + below(2) * 16;
  }

  std::vector<RequestId> some_requests() {
    std::vector<RequestId> requests;
    for (const auto& [request, _] : model_.lists) {
      if (below(2)) requests.push_back(request);
    }
    std::shuffle(requests.begin(), requests.end(), random_);
    return requests;
  }

  void allocate() {
    const RequestId request = any_request();
    const std::int64_t n = below(40);
    if (!model_.can_grow(request, n) && model_.lists.contains(request)) {
      expect_throws<std::invalid_argument>([&] { slab_.allocate(request, n); }, "growing without a past");
    } else if (model_.slots_of(request, n) > model_.free()) {
      expect_throws<lamina::SlabFull>([&] { slab_.allocate(request, n); }, "allocating too much");
    } else {
      expect(copy_of(slab_.allocate(request, n)) == model_.append(request, n), "allocate: other slots");
    }
  }

  void extend() {
    std::vector<RequestId> requests = some_requests();
    const std::int64_t n = below(sight_.limited() ? 2 : 4);
    if (n * static_cast<std::int64_t>(requests.size()) > model_.free()) {
      expect_throws<lamina::SlabFull>([&] { slab_.extend(requests, n); }, "extending too much");
      return;
    }
    if (!std::ranges::all_of(requests, [&](RequestId each) { return model_.can_grow(each, n); })) {
      expect_throws<std::invalid_argument>([&] { slab_.extend(requests, n); }, "growing without a past");
      return;
    }
    Slots expected;
    for (const RequestId request : requests) model_.forget(request, n);
    if (n == 1) model_.turn(requests.size());
    for (const RequestId request : requests) {
      for (const Slot slot : model_.append(request, n)) expected.push_back(slot);
    }
    expect(copy_of(slab_.extend(requests, n)) == expected, "extend: other slots");
    if (requests.empty()) return;
    requests.push_back(requests.front());
    expect_throws<std::invalid_argument>([&] { slab_.extend(requests, n); }, "a repeated request");
  }

  void fork() {
    const RequestId parent = any_request();
    const RequestId child = any_request();
    if (!model_.lists.contains(parent)) {
      expect_throws<lamina::UnknownRequest>([&] { slab_.fork(parent, child); }, "forking an unknown request");
    } else if (model_.lists.contains(child)) {
      expect_throws<std::invalid_argument>([&] { slab_.fork(parent, child); }, "forking onto a request");
    } else {
      const std::int64_t n = below(model_.lengths[parent] + 1);
      slab_.fork(parent, child, n);
      model_.fork(parent, child, n);
    }
  }

  void release() {
    std::vector<RequestId> requests = some_requests();
    if (below(3) == 0) {
      requests.push_back(7);  // never allocated: the whole batch is refused
      expect_throws<lamina::UnknownRequest>([&] { slab_.release(requests); }, "releasing an unknown request");
      return;
    }
    if (below(2) && !requests.empty()) requests.resize(1);
    slab_.release(requests);
    for (const RequestId request : requests) model_.release(request);
  }

  void look() {
    for (const auto& [request, list] : model_.lists) {
      if (below(4) == 0) views_.emplace_back(slab_.indices(request), list);
    }
    while (views_.size() > 20) views_.erase(views_.begin());
  }

  void compare() {
    try {
      slab_.check_integrity();
    } catch (const lamina::BrokenInvariant& error) {
      fail(error.what());
    }
    expect(slab_.free() == model_.free(), "free() differs");
    expect(slab_.request_count() == model_.lists.size(), "request_count() differs");
    for (const auto& [request, list] : model_.lists) {
      const Slab::View view = slab_.indices(request);
      expect(copy_of({view.slots.get(), view.size}) == list, "indices() differ");
      expect(slab_.length(request) == model_.lengths.at(request), "length() differs");
    }
    for (const auto& [view, then] : views_) {
      expect(copy_of({view.slots.get(), view.size}) == then, "an old view has changed");
    }
    const Slot slot = static_cast<Slot>(below(slab_.capacity()));
    expect(slab_.refcount(slot) == model_.owners(slot), "refcount() differs");
  }

  Random& random_;
  Sight sight_;
  Slab slab_;
  Model model_;
  std::vector<std::pair<Slab::View, Slots>> views_;  // with what each showed when it was taken
};

// Every kind of damage has to be noticed, each in a slab of its own with 4 tokens of request 1, the first 2
// of them shared by request 2, and a spare list.
void damage(const char* expected, const std::function<void(Slab&)>& harm) {
  Slab slab(8);
  slab.allocate(1, 4);
  slab.fork(1, 2, 2);
  slab.allocate(3, 1);
  slab.release(3);
  slab.check_integrity();
  harm(slab);
  expect_message<lamina::BrokenInvariant>([&] { slab.check_integrity(); }, expected);
}

void damage_is_noticed() {
  damage("top is outside", [](Slab& s) { Access::used(s) = 9; });
  damage("holds an impossible slot", [](Slab& s) { Access::free_stack(s).back() = 8; });
  damage("holds twice", [](Slab& s) { Access::free_stack(s)[6] = Access::free_stack(s)[7]; });
  damage("in use", [](Slab& s) { Access::free_stack(s)[7] = 0; });
  damage("in use", [](Slab& s) { --Access::used(s); });  // a double free
  damage("leaked", [](Slab& s) { ++Access::used(s); });
  damage("reference count differs", [](Slab& s) { ++Access::owners(s)[0]; });
  damage("reference count differs", [](Slab& s) { --Access::owners(s)[1]; });
  damage("not as long as its tokens are seen", [](Slab& s) { --Access::list(s, 1).size; });
  damage("held twice", [](Slab& s) { Access::list(s, 1).buffer.slots[3] = 2; });
  damage("an impossible slot is held", [](Slab& s) { Access::list(s, 1).buffer.slots[3] = -1; });
  damage("longer than its buffer", [](Slab& s) { Access::list(s, 1).size = 17; });
  damage("no list of its own", [](Slab& s) { Access::handles(s).insert(9, 0); });
  damage("no list of its own", [](Slab& s) { Access::handles(s).insert(9, 99); });
  damage("neither to a request nor", [](Slab& s) { Access::first_spare(s) = FlatMap::kNone; });
  damage("chain of spare", [](Slab& s) { Access::first_spare(s) = 0; });
}

void impossible_arguments_are_refused() {
  using Invalid = std::invalid_argument;
  for (const std::int64_t capacity : {std::int64_t{0}, std::int64_t{-1}, Slab::kMaxCapacity + 1, INT64_MAX}) {
    expect_throws<Invalid>([&] { Slab slab(capacity); }, "capacity " + std::to_string(capacity));
  }
  expect_throws<Invalid>([&] { Slab slab(8, {-1, 0}); }, "a negative window");
  expect_throws<Invalid>([&] { Slab slab(8, {0, -1}); }, "a negative chunk");
  Slab windowed(8, {2, 0});
  windowed.allocate(1, 4);
  expect_throws<Invalid>([&] { windowed.extend(std::vector<RequestId>{1}, 2); }, "two in a window");
  Slab slab(8);
  slab.allocate(1, 0);
  expect_throws<Invalid>([&] { slab.allocate(1, -1); }, "a negative n");
  expect_throws<Invalid>([&] { slab.extend(std::vector<RequestId>{1}, INT64_MAX); }, "a huge n");
  expect_throws<Invalid>([&] { slab.fork(1, 2, 1); }, "forking more than there is");
  expect_throws<std::out_of_range>([&] { slab.refcount(8); }, "a slot outside");
  expect_throws<lamina::SlabFull>([&] { slab.allocate(2, Slab::kMaxCapacity); }, "more than the slab");
  expect(!slab.contains(2), "a failed allocate left its request behind");
}

}  // namespace

int main() {
  Random random(20240501);
  damage_is_noticed();
  impossible_arguments_are_refused();
  for (const Slot capacity : {1, 7, 64, 300, 1000}) {
    for (int round = 0; round < 3; ++round) Walk(random, capacity, {}).run(400);
    for (const Sight sight : {Sight{5, 0}, Sight{0, 4}, Sight{17, 0}, Sight{6, 9}}) {
      Walk(random, capacity, sight).run(200);
    }
  }
  std::puts("slab_stress: ok");
}
