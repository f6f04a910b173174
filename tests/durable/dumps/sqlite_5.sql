-- A ledger of schema 5, left behind by the code of that version when its process was killed.
-- Cursor behind the second completion: b39bf3a29a16.4.0
BEGIN TRANSACTION;
CREATE TABLE checkpoint (
    session_id TEXT PRIMARY KEY, fence INTEGER NOT NULL, text TEXT NOT NULL, kept TEXT
) WITHOUT ROWID;
CREATE TABLE epoch (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    first INTEGER NOT NULL
);
INSERT INTO "epoch" VALUES(1,'df6117440169',0);
INSERT INTO "epoch" VALUES(2,'b39bf3a29a16',1);
CREATE TABLE history (
    position INTEGER PRIMARY KEY, session_id TEXT NOT NULL, entries TEXT NOT NULL, at REAL NOT NULL
);
INSERT INTO "history" VALUES(1,'a','[{"event": "accept", "session": "a", "run": "first", "seq": 1}, {"event": "enter", "session": "a", "run": "first", "seq": 1, "from": "accepted", "to": "active", "state": "active"}]',1.79500570918727111817e+09);
INSERT INTO "history" VALUES(2,'a','[{"event": "complete", "session": "a", "run": "first", "seq": 1, "from": "active", "to": "complete", "cancelled": false}]',1.79500570920394206045e+09);
INSERT INTO "history" VALUES(3,'b','[{"event": "accept", "session": "b", "run": "failed", "seq": 1}, {"event": "enter", "session": "b", "run": "failed", "seq": 1, "from": "accepted", "to": "active", "state": "active"}]',1.79500570922642636298e+09);
INSERT INTO "history" VALUES(4,'b','[{"event": "complete", "session": "b", "run": "failed", "seq": 1, "from": "active", "to": "complete", "cancelled": false, "error": "ValueError: no"}]',1.7950057092420797348e+09);
INSERT INTO "history" VALUES(5,'a','[{"event": "accept", "session": "a", "run": "lead", "seq": 2}, {"event": "enter", "session": "a", "run": "lead", "seq": 2, "from": "accepted", "to": "active", "state": "active"}]',1.79500570925995731356e+09);
INSERT INTO "history" VALUES(6,'a','[{"event": "accept", "session": "a", "run": "folded-1", "seq": 3}, {"event": "enter", "session": "a", "run": "folded-1", "seq": 3, "from": "accepted", "to": "queued", "state": "queued"}]',1.79500570927910733229e+09);
INSERT INTO "history" VALUES(7,'a','[{"event": "fold", "session": "a", "run": "folded-1", "seq": 3, "from": "queued", "to": "active", "into": "lead"}]',1.79500570929462552067e+09);
INSERT INTO "history" VALUES(8,'a','[{"event": "accept", "session": "a", "run": "folded-2", "seq": 4}, {"event": "enter", "session": "a", "run": "folded-2", "seq": 4, "from": "accepted", "to": "queued", "state": "queued"}]',1.795005709314940691e+09);
INSERT INTO "history" VALUES(9,'a','[{"event": "fold", "session": "a", "run": "folded-2", "seq": 4, "from": "queued", "to": "active", "into": "lead"}]',1.795005709338334322e+09);
INSERT INTO "history" VALUES(10,'a','[{"event": "complete", "session": "a", "run": "lead", "seq": 2, "from": "active", "to": "complete", "cancelled": false}, {"event": "complete", "session": "a", "run": "folded-1", "seq": 3, "from": "active", "to": "complete", "cancelled": false}, {"event": "complete", "session": "a", "run": "folded-2", "seq": 4, "from": "active", "to": "complete", "cancelled": false}]',1.7950057093461148739e+09);
INSERT INTO "history" VALUES(11,'b','[{"event": "accept", "session": "b", "run": "second", "seq": 2}, {"event": "enter", "session": "b", "run": "second", "seq": 2, "from": "accepted", "to": "active", "state": "active"}]',1.79500570936280918121e+09);
INSERT INTO "history" VALUES(12,'b','[{"event": "complete", "session": "b", "run": "second", "seq": 2, "from": "active", "to": "complete", "cancelled": false}]',1.79500570937546014785e+09);
INSERT INTO "history" VALUES(13,'c','[{"event": "accept", "session": "c", "run": "cancelled", "seq": 1}, {"event": "enter", "session": "c", "run": "cancelled", "seq": 1, "from": "accepted", "to": "active", "state": "active"}]',1.79500570939076113698e+09);
INSERT INTO "history" VALUES(14,'c','[{"event": "cancel", "session": "c"}]',1.79500570940200042729e+09);
INSERT INTO "history" VALUES(15,'c','[{"event": "complete", "session": "c", "run": "cancelled", "seq": 1, "from": "active", "to": "complete", "cancelled": true}]',1.79500570941078948974e+09);
INSERT INTO "history" VALUES(16,'d','[{"event": "accept", "session": "d", "run": "hanging", "seq": 1}, {"event": "enter", "session": "d", "run": "hanging", "seq": 1, "from": "accepted", "to": "active", "state": "active"}]',1.7950057094387593269e+09);
INSERT INTO "history" VALUES(17,'d','[{"event": "accept", "session": "d", "run": "queued", "seq": 2}, {"event": "enter", "session": "d", "run": "queued", "seq": 2, "from": "accepted", "to": "queued", "state": "queued"}]',1.79500570945084905617e+09);
INSERT INTO "history" VALUES(18,'e','[{"event": "accept", "session": "e", "run": "accepted", "seq": 1}]',1.79500570945882987976e+09);
CREATE TABLE "message" (
    position INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    session_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    role TEXT NOT NULL,
    text TEXT NOT NULL,
    finish_reason TEXT,
    data TEXT,
    turn TEXT NOT NULL
);
INSERT INTO "message" VALUES(2097153,'msg-e7235c88891eg1-1','a','first','user','first',NULL,NULL,'msg-e7235c88891eg1-1-reply');
INSERT INTO "message" VALUES(2097154,'msg-e7235c88891eg1-1-reply','a','first','assistant','answer to first','end_turn','{"cost": 1}','msg-e7235c88891eg1-1-reply');
INSERT INTO "message" VALUES(4194305,'msg-e7235c88891eg3-1','b','failed','user','fail',NULL,NULL,'msg-e7235c88891eg3-1-reply');
INSERT INTO "message" VALUES(4194306,'msg-e7235c88891eg3-1-reply','b','failed','assistant','','error',NULL,'msg-e7235c88891eg3-1-reply');
INSERT INTO "message" VALUES(10485761,'msg-e7235c88891eg1-2','a','lead','user','wait 1',NULL,NULL,'msg-e7235c88891eg1-2-reply');
INSERT INTO "message" VALUES(10485762,'msg-e7235c88891eg1-3','a','folded-1','user','also 1',NULL,NULL,'msg-e7235c88891eg1-2-reply');
INSERT INTO "message" VALUES(10485763,'msg-e7235c88891eg1-4','a','folded-2','user','also 2',NULL,NULL,'msg-e7235c88891eg1-2-reply');
INSERT INTO "message" VALUES(10485764,'msg-e7235c88891eg1-2-reply','a','lead','assistant','answer to wait 1','end_turn','{"cost": 1}','msg-e7235c88891eg1-2-reply');
INSERT INTO "message" VALUES(12582913,'msg-e7235c88891eg3-2','b','second','user','second',NULL,NULL,'msg-e7235c88891eg3-2-reply');
INSERT INTO "message" VALUES(12582914,'msg-e7235c88891eg3-2-reply','b','second','assistant','answer to second','end_turn','{"cost": 1}','msg-e7235c88891eg3-2-reply');
INSERT INTO "message" VALUES(15728641,'msg-e7235c88891egd-1','c','cancelled','user','hang',NULL,NULL,'msg-e7235c88891egd-1-reply');
INSERT INTO "message" VALUES(15728642,'msg-e7235c88891egd-1-reply','c','cancelled','assistant','','canceled',NULL,'msg-e7235c88891egd-1-reply');
CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    purged INTEGER NOT NULL
, purged_ordinal INTEGER NOT NULL DEFAULT 2147483647, forgotten INTEGER NOT NULL DEFAULT 0);
INSERT INTO "meta" VALUES(1,'df6117440169',0,0,2147483647,0);
CREATE TABLE operation_key (
    key TEXT NOT NULL,
    part TEXT NOT NULL,
    request TEXT NOT NULL,
    answer TEXT NOT NULL,
    step_id TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (key, part)
) WITHOUT ROWID;
INSERT INTO "operation_key" VALUES('left behind','','cancel 1e71917a73416080455fd1968416fa9f','{"runs": [], "known": true}','',1.79500570942899584769e+09);
CREATE TABLE "run" (
    run_id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    state TEXT NOT NULL,
    when_busy TEXT NOT NULL,
    covered INTEGER NOT NULL,
    holder INTEGER NOT NULL,
    place INTEGER NOT NULL,
    prompt TEXT NOT NULL,
    attachments TEXT NOT NULL,
    digest TEXT NOT NULL,
    accepted_at REAL NOT NULL,
    completed_at REAL,
    text TEXT,
    error TEXT,
    cancelled INTEGER,
    message_id TEXT,
    folded_into TEXT,
    outcome TEXT,
    position INTEGER,
    ordinal INTEGER
, data TEXT NOT NULL DEFAULT '', rank INTEGER NOT NULL DEFAULT 0, held INTEGER NOT NULL DEFAULT 0, bound TEXT NOT NULL DEFAULT '') WITHOUT ROWID;
INSERT INTO "run" VALUES('accepted','e',1,'accepted','fold',0,1,0,'accepted','','b2f610356f006395dc4df5c1e4807896',1.79500570945882987976e+09,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'',1,0,'');
INSERT INTO "run" VALUES('cancelled','c',1,'complete','fold',0,1,0,'','','2e2875f381b626f548d81e249fd44ec2',1.79500570939076113698e+09,1.79500570941078948974e+09,'',NULL,1,'msg-e7235c88891egd-1-reply',NULL,'cancelled',15,0,'',1,0,'');
INSERT INTO "run" VALUES('failed','b',1,'complete','fold',0,1,0,'','','916af06aa5e2580c846e19399ed61086',1.79500570922642636298e+09,1.7950057092420797348e+09,'','ValueError: no',0,'msg-e7235c88891eg3-1-reply',NULL,'failed',4,0,'',1,0,'');
INSERT INTO "run" VALUES('first','a',1,'complete','fold',0,1,0,'','','981993dd53c6be734d709c072c689417',1.79500570918727111817e+09,1.79500570920394206045e+09,'answer to first',NULL,0,'msg-e7235c88891eg1-1-reply',NULL,'finished',2,0,'',1,0,'');
INSERT INTO "run" VALUES('folded-1','a',3,'complete','fold',0,1,1,'','','b2a2e032cd63fdc7eb5faaf6d05e2f3f',1.79500570927910733229e+09,1.7950057093461148739e+09,'answer to wait 1',NULL,0,'msg-e7235c88891eg1-2-reply','lead','finished',10,1,'',3,0,'');
INSERT INTO "run" VALUES('folded-2','a',4,'complete','fold',0,1,2,'','','22b866c298e046b72c1f536871099786',1.795005709314940691e+09,1.7950057093461148739e+09,'answer to wait 1',NULL,0,'msg-e7235c88891eg1-2-reply','lead','finished',10,2,'',4,0,'');
INSERT INTO "run" VALUES('hanging','d',1,'active','fold',0,1,0,'hang','','9de1d62091f3f7ffeee6f968030ace43',1.7950057094387593269e+09,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'',1,0,'');
INSERT INTO "run" VALUES('lead','a',2,'complete','fold',0,1,0,'','','5c586505346a432ee7233ddb709a4b8a',1.79500570925995731356e+09,1.7950057093461148739e+09,'answer to wait 1',NULL,0,'msg-e7235c88891eg1-2-reply',NULL,'finished',10,0,'',2,0,'');
INSERT INTO "run" VALUES('queued','d',2,'queued','fold',0,1,0,'queued','','e0ef7361edd05de4a99729de8efbdbef',1.79500570945084905617e+09,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'',2,0,'');
INSERT INTO "run" VALUES('second','b',2,'complete','fold',0,1,0,'','','d8edd68186ed834c18e4817f2fbfea82',1.79500570936280918121e+09,1.79500570937546014785e+09,'answer to second',NULL,0,'msg-e7235c88891eg3-2-reply',NULL,'finished',12,0,'',2,0,'');
CREATE TABLE session (
    session_id TEXT PRIMARY KEY,
    token TEXT NOT NULL,
    version INTEGER NOT NULL,
    next_seq INTEGER NOT NULL,
    mark INTEGER NOT NULL,
    queued INTEGER NOT NULL,
    lead TEXT,
    owner INTEGER,
    fence INTEGER NOT NULL,
    covered INTEGER NOT NULL,
    begun INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    since REAL,
    recent TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "session" VALUES('a','e7235c88891eg1',9,5,0,0,NULL,NULL,5,0,0,0,NULL,'e7235c88891eg1 e7235c88891eg2 e7235c88891eg5 e7235c88891eg6 e7235c88891eg7 e7235c88891eg8 e7235c88891eg9 e7235c88891ega');
INSERT INTO "session" VALUES('b','e7235c88891eg3',7,3,0,0,NULL,NULL,11,0,0,0,NULL,'e7235c88891eg3 e7235c88891eg4 e7235c88891egb e7235c88891egc');
INSERT INTO "session" VALUES('c','e7235c88891egd',16,2,0,0,NULL,NULL,13,0,0,0,NULL,'e7235c88891egd e7235c88891ege e7235c88891egf');
INSERT INTO "session" VALUES('d','e7235c88891eg11',18,3,0,1,'hanging',1,16,0,1,1,1.79500570943854022027e+09,'e7235c88891eg11 e7235c88891eg12');
INSERT INTO "session" VALUES('e','e7235c88891eg13',19,2,0,0,NULL,NULL,18,0,0,0,NULL,'e7235c88891eg13');
CREATE TABLE worker (worker INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL);
INSERT INTO "worker" VALUES(1,'09cb6926660a5325.65024-2252878.65024-2252854.24431d47c49a-25230-640777');
CREATE INDEX run_accepted ON run (accepted_at) WHERE state = 'accepted';
CREATE UNIQUE INDEX run_in_order ON run (position, ordinal) WHERE position IS NOT NULL;
CREATE INDEX message_of_session ON message (session_id, position);
CREATE INDEX operation_key_by_age ON operation_key (at);
CREATE INDEX run_in_flight ON run (state, session_id, held, rank) WHERE state <> 'complete';
CREATE INDEX run_bound ON run (session_id) WHERE bound <> '';
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('worker',1);
COMMIT;
PRAGMA user_version = 5;
