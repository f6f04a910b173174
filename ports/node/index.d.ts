export type Feature =
  | 'cancel' | 'clear' | 'folds' | 'two_phase' | 'cancel_run' | 'interrupt' | 'reject' | 'messages'
  | 'wait' | 'crash' | 'residue' | 'bursts' | 'real_time' | (string & {});

/** A question of the kit: annex A.3 of the specification has all of them. */
export interface Question {
  id?: number;
  op: string;
  session?: string;
  run?: string;
  ops?: Question[];
  after?: number;
  [key: string]: unknown;
}

export interface Event {
  event: string;
  run: string;
  [key: string]: unknown;
}

export interface Answer {
  id?: number;
  features?: readonly Feature[];
  events?: Event[];
  at_work?: string[];
  residue?: number;
}

export interface Outcome {
  cancelled?: boolean;
  error?: string;
}

/** The work of a turn: returns when the kit finishes the turn, throws when the kit fails it or the signal aborts. */
export type Runner = (run: string, signal?: AbortSignal) => Promise<string>;

/** What one program sees of a dispatcher. */
export interface Port {
  readonly runner: Runner;
  /** Shows the RunComplete of a run, where a caller would learn of it. */
  readonly complete: (run: string, outcome?: Outcome) => void;
  /**
   * Shows the RunComplete of a run when its promise is settled. A run whose promise is rejected was cancelled if
   * `isCancel` says so; by default, if the error is an AbortError.
   */
  readonly watch: (run: string, promise: PromiseLike<unknown>, isCancel?: (error: unknown) => boolean) => void;
  /** Shows that a prompt was refused. */
  readonly refused: (run: string) => void;
}

export type Operation = (question: { session: string; run: string; [key: string]: unknown }) => unknown;

/** An operation for each feature, by the name that questions have for it; `close` ends the dispatcher. */
export interface Operations {
  accept: Operation;
  close?: () => unknown;
  residue?: () => number | Promise<number>;
  [name: string]: unknown;
}

/** A dispatcher with one phase, a cancel and a clear. */
export interface Dispatcher {
  submit(session: string, run: string): unknown;
  cancel(session: string): unknown;
  clear(session: string): unknown;
}

export type Make =
  | (new (runner: Runner, complete: Port['complete']) => Dispatcher)
  | ((port: Port) => Operations | Promise<Operations>);

/** One dispatcher at a time behind the port. Without `features`: `cancel` and `clear`. */
export class Subject {
  constructor(make: Make, features?: readonly Feature[]);
  readonly features: readonly Feature[];
  ask(question: Question): Promise<Answer>;
  close(): Promise<void>;
}

/** Answers the questions of the kit from standard input on standard output, until they end. */
export function serve(make: Make, features?: readonly Feature[]): Promise<void>;

export interface Vector {
  program: string;
  feature: string;
  needs: Feature[];
  guards: string[];
  refutes: Record<string, string>;
  steps: (Question & { may: Event[][] })[];
}

/** Where a subject shows what a vector does not allow. */
export interface Difference {
  program: string;
  nth: number;
  question: Question;
  may: Event[][];
  shown: Event[];
}

/** Returns the vectors of a file that `turngate vectors` has written. */
export function readVectors(path: string | URL): Promise<Vector[]>;
/** Tells whether a subject has every feature that a vector needs. */
export function canPlay(features: readonly Feature[], vector: Vector): boolean;
/** Plays a vector on a fresh dispatcher. Returns null, or the first difference. */
export function playVector(subject: Subject, vector: Vector): Promise<Difference | null>;
/** Plays all vectors of a file that the subject can play, and closes the subject. */
export function playVectors(subject: Subject, path: string | URL): Promise<{ played: number; differences: Difference[] }>;
