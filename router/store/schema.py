"""The tables of the store's database.

`object` has a row for each object; `seq` is the order in which they came, and with it the order in which they leave.
`usage` has the bytes and the number of the objects of each owner and kind, kept by triggers, so that neither a limit
nor the metrics need a scan. `removals` counts the objects that left the store by its limits.
"""

from __future__ import annotations

APPLICATION_ID = 0x536C7374  # "Slst": the mark of a database of ours (PRAGMA application_id)
VERSION = 1  # of these tables (PRAGMA user_version)
ROW_BYTES = 256  # a row and its entries in indexes, beside the body

COLUMNS = "kind, id, owner, created_s, body, parent, blob_bytes, expires_s, is_pinned"

OF_OBJECT = ", ".join(f"object.{column}" for column in COLUMNS.split(", "))

TABLES = f"""
CREATE TABLE object (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    parent TEXT NOT NULL,
    created_s REAL NOT NULL,
    expires_s REAL NOT NULL,
    is_pinned INTEGER NOT NULL,
    blob_bytes INTEGER NOT NULL,
    num_bytes INTEGER NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (kind, id)
);
CREATE INDEX by_id ON object (id);
CREATE INDEX by_owner ON object (owner, kind, seq);
CREATE INDEX by_parent ON object (parent, kind, seq) WHERE parent != '';
CREATE INDEX by_age ON object (expires_s) WHERE is_pinned = 0;
CREATE INDEX by_turn ON object (owner, seq) WHERE is_pinned = 0;
CREATE INDEX pinned ON object (kind, owner, seq) WHERE is_pinned = 1;
CREATE TABLE usage (
    owner TEXT NOT NULL,
    kind TEXT NOT NULL,
    num_bytes INTEGER NOT NULL,
    num_objects INTEGER NOT NULL,
    PRIMARY KEY (owner, kind)
) WITHOUT ROWID;
CREATE TABLE removals (reason TEXT PRIMARY KEY, num_objects INTEGER NOT NULL);
INSERT INTO removals VALUES ('evicted', 0), ('expired', 0);
CREATE TRIGGER object_inserted AFTER INSERT ON object BEGIN
    INSERT INTO usage VALUES (new.owner, new.kind, new.num_bytes, 1)
        ON CONFLICT (owner, kind) DO UPDATE SET
            num_bytes = num_bytes + new.num_bytes, num_objects = num_objects + 1;
END;
CREATE TRIGGER object_resized AFTER UPDATE OF num_bytes ON object BEGIN
    UPDATE usage SET num_bytes = num_bytes + new.num_bytes - old.num_bytes
        WHERE owner = new.owner AND kind = new.kind;
END;
CREATE TRIGGER object_deleted AFTER DELETE ON object BEGIN
    UPDATE usage SET num_bytes = num_bytes - old.num_bytes, num_objects = num_objects - 1
        WHERE owner = old.owner AND kind = old.kind;
    DELETE FROM usage WHERE owner = old.owner AND kind = old.kind AND num_objects <= 0;
END;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
"""

PUT = """
INSERT INTO object (kind, id, owner, created_s, body, parent, blob_bytes, expires_s, is_pinned, num_bytes)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, id) DO UPDATE SET
    body = excluded.body, parent = excluded.parent, blob_bytes = excluded.blob_bytes,
    expires_s = excluded.expires_s, is_pinned = excluded.is_pinned, num_bytes = excluded.num_bytes
WHERE owner = excluded.owner
"""
RENEW = """
UPDATE object SET seq = (SELECT max(seq) + 1 FROM object), expires_s = ?
WHERE kind = ? AND id = ? AND owner = ?
"""
GET = f"SELECT {COLUMNS} FROM object WHERE kind = ? AND id = ? AND owner = ? AND (expires_s > ? OR is_pinned)"
CHAIN = f"""
WITH RECURSIVE chain (depth, seq, parent, total) AS (
    SELECT 0, seq, parent, num_bytes FROM object
    WHERE kind = :kind AND id = :id AND owner = :owner AND expires_s > :now
    UNION ALL
    SELECT depth + 1, object.seq, object.parent, total + object.num_bytes FROM chain
    JOIN object ON object.kind = :kind AND object.id = chain.parent
    WHERE chain.parent != '' AND object.owner = :owner AND object.expires_s > :now
        AND depth < :most AND total < :most_bytes
)
SELECT {OF_OBJECT}, depth, total FROM chain JOIN object ON object.seq = chain.seq
"""  # not sorted there, which would copy the bodies
