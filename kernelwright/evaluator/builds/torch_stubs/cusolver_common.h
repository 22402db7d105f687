#pragma once
typedef enum {
  CUSOLVER_STATUS_SUCCESS = 0,
  CUSOLVER_STATUS_INVALID_VALUE = 3,
  CUSOLVER_STATUS_EXECUTION_FAILED = 6
} cusolverStatus_t;
typedef struct cusolverDnContext* cusolverDnHandle_t;
