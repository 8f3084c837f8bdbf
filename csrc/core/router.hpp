#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace lamina {

enum class Routing {
  kRoundRobin,
  kLeastRequests,
  kLeastKv,
  kPrefix,  // where the longest part of its prompt was sent before
  kFit,     // the smallest one that has room: a global scheduler's choice among sets of workers
};

// What a router knows of a request.
struct Wanted {
  std::int64_t prompt = 0;  // tokens
  std::int64_t output = 0;  // most that it may make
  // Its prompt's leading blocks; an id stands for a block and all before it.
  std::span<const std::int64_t> prefix{};
  std::int64_t prefix_block_tokens = 512;

  std::int64_t tokens() const { return prompt + output; }
};

// Which of several instances a request goes to: one implementation for the simulator and for engines that
// run. It goes by what it has sent and by what has ended, as a router does that stands in front of servers.
class Router {
public:
  struct Instance {
    std::int64_t kv_tokens;           // that it has room for
    std::int64_t max_requests;        // that it runs at once
    std::int64_t request_tokens = 0;  // of each request besides its own tokens
  };
  static constexpr int kNone = -1;

  // `global`: a request is not sent where there is no room for all that it may need, but waits in front.
  Router(Routing routing, std::vector<Instance> instances, bool global);

  int instances() const { return static_cast<int>(instances_.size()); }
  // Where it goes, counted there from now on; kNone while no instance takes it.
  int route(const Wanted& wanted);
  // The same where the caller has chosen; if that one is closed, it goes where there are least requests.
  int route_to(int instance, const Wanted& wanted);
  // It has ended there, or been taken away.
  void left(int instance, const Wanted& wanted);
  // Whether an instance gets requests.
  void open(int instance, bool open);

  // What each instance has: requests, and KV tokens that these may need.
  std::span<const std::int64_t> requests() const { return requests_; }
  std::span<const std::int64_t> kv_tokens() const { return kv_; }

  // From the outset: where the n-th request goes, whatever ends when.
  static bool assigns_in_turn(Routing routing, bool global) {
    return routing == Routing::kRoundRobin && !global;
  }

private:
  // KV tokens that it may need there.
  std::int64_t needs(std::size_t instance, const Wanted& wanted) const {
    return wanted.tokens() + instances_[instance].request_tokens;
  }
  bool takes(std::size_t instance, const Wanted& wanted) const;
  template <typename Less>
  int least(const Wanted& wanted, Less less) const;
  int choose(const Wanted& wanted);
  int sent(int instance, const Wanted& wanted);
  int in_turn(const Wanted& wanted);
  int least_requests(const Wanted& wanted) const;
  int least_kv(const Wanted& wanted) const;
  int with_prefix(const Wanted& wanted) const;
  int fitting(const Wanted& wanted) const;
  const int* sent_to(std::int64_t id) const;
  void remember(int instance, const Wanted& wanted);

  Routing routing_;
  std::vector<Instance> instances_;
  bool global_;
  std::vector<std::int64_t> requests_, kv_;
  std::vector<bool> open_;
  std::ptrdiff_t closed_ = 0;
  std::size_t turn_ = 0;
  // The instance that got a block last. When the recent ones are many they become the old ones, which are
  // forgotten then.
  std::unordered_map<std::int64_t, int> recent_, old_;
};

}  // namespace lamina
