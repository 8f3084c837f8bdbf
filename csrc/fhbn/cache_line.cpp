#include "fhbn/cache_line.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <vector>

namespace lamina::fhbn {

namespace {

// Balls that cross in a sample: looking at the clock takes as long as one of them.
constexpr std::uint32_t kBalls = 64;
constexpr std::uint32_t kMostSamples = 1 << 16;

bool stay_on(int cpu) {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(cpu, &only);
  return ::sched_setaffinity(0, sizeof only, &only) == 0;
}

struct Table {
  alignas(128) std::atomic<std::uint32_t> ball = 0;  // odd: on its way back
  alignas(128) std::atomic<std::uint32_t> players = 0;
  std::atomic<bool> absent = false;  // one may not use its core
};

bool take_place(Table& table, int cpu) {
  if (!stay_on(cpu)) table.absent = true;
  ++table.players;
  while (table.players < 2) std::this_thread::yield();
  return !table.absent;
}

void return_balls(Table& table, int cpu, std::uint32_t count) {
  if (!take_place(table, cpu)) return;
  for (std::uint32_t ball = 1; ball < 2 * count; ball += 2) {
    while (table.ball.load(std::memory_order_acquire) != ball) {
    }
    table.ball.store(ball + 1, std::memory_order_release);
  }
}

void serve_balls(Table& table, int cpu, std::vector<double>& seconds) {
  using Clock = std::chrono::steady_clock;
  if (!take_place(table, cpu)) return;
  std::uint32_t ball = 0;
  for (double& sample : seconds) {
    const auto start = Clock::now();
    for (std::uint32_t i = 0; i < kBalls; ++i, ball += 2) {
      table.ball.store(ball + 1, std::memory_order_release);
      while (table.ball.load(std::memory_order_acquire) != ball + 2) {
      }
    }
    sample = std::chrono::duration<double>(Clock::now() - start).count() / kBalls;
  }
}

}  // namespace

double cache_line_round_trip_s(int first_cpu, int second_cpu, std::uint32_t rounds) {
  std::vector<double> seconds(std::clamp(rounds / kBalls, 1u, kMostSamples));
  Table table;
  const auto count = static_cast<std::uint32_t>(seconds.size()) * kBalls;
  std::thread server([&] { serve_balls(table, first_cpu, seconds); });
  std::thread returner([&] { return_balls(table, second_cpu, count); });
  server.join();
  returner.join();
  if (table.absent) throw std::system_error(EINVAL, std::generic_category(), "using the cores asked for");
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2),
                   seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace lamina::fhbn
