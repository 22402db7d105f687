"""Keeps a pool of two threads between calls; they sleep until there is work, and a call returns when it is done.

row: threads and deferred work
problem: problems/row_softmax.py
backend: cpp
screen: passes
like: timing/worked_off_by_a_second_thread, timing/threads_left_busy
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

class Pool {
 public:
  explicit Pool(int size) {
    for (int i = 0; i < size; i++) threads_.emplace_back([this, i] { serve(i); });
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  int size() const { return int(threads_.size()); }

  void run(const std::function<void(int)>& work) {
    std::unique_lock<std::mutex> lock(mutex_);
    work_ = &work;
    left_ = size();
    round_++;
    wake_.notify_all();
    done_.wait(lock, [this] { return left_ == 0; });
  }

 private:
  void serve(int number) {
    int64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return ending_ || round_ != seen; });
      if (ending_) return;
      seen = round_;
      const auto* work = work_;
      lock.unlock();
      (*work)(number);
      lock.lock();
      if (--left_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* work_ = nullptr;
  int64_t round_ = 0;
  int left_ = 0;
  bool ending_ = false;
};

static void softmax_row(const float* x, float* y, int64_t cols) {
  float largest = x[0];
  for (int64_t j = 1; j < cols; j++) largest = x[j] > largest ? x[j] : largest;
  double sum = 0;
  for (int64_t j = 0; j < cols; j++) sum += y[j] = expf(x[j] - largest);
  for (int64_t j = 0; j < cols; j++) y[j] = float(y[j] / sum);
}

extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t cols) {
  static Pool pool(2);
  pool.run([=](int number) {
    for (int64_t i = number; i < rows; i += pool.size()) softmax_row(x + i * cols, y + i * cols, cols);
  });
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.softmax(x, y, x.shape[0], x.shape[1])
        return y
